"""ResNet training with DistributedDataParallel, started by torchrun or on its own."""
