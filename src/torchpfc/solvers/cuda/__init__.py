"""Solving on CUDA devices: `fused` is asked whether a kernel takes some steps, and the plain loops take them if not."""
