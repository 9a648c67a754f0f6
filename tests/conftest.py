"""Shared by all tests: one thread per process, and the plugin under test made available to pytest's own tester."""

import torch

pytest_plugins = ["pytester"]

torch.set_num_threads(1)
