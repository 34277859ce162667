"""ddpctl: launch PyTorch DistributedDataParallel training in containers on several hosts over SSH."""

__version__ = "0.1.0"
