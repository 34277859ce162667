"""DistributedDataParallel training of ResNets, to be started by torchrun or alone."""
