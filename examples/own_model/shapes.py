import torch
from torch import nn


class Shapes(torch.utils.data.Dataset):
    classes = ("square", "cross")

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        image, (y, x) = torch.randn(3, 24, 24) / 2, torch.randint(0, 16, (2,)).tolist()
        shape = torch.ones(8, 8) if index % 2 == 0 else torch.eye(8) + torch.eye(8).flip(0)
        image[:, y : y + 8, x : x + 8] += shape
        return image, index % 2


def data():
    return Shapes(), Shapes()


def network(num_classes):
    seen = nn.Sequential(nn.Conv2d(3, 16, 8), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return nn.Sequential(seen, nn.Linear(16, num_classes))
