"""The suites run on one thread per process: small models lose more to thread switching than they gain."""

import torch

torch.set_num_threads(1)
