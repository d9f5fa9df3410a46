"""The part of the build that pyproject.toml cannot say: the cffi module."""

from setuptools import setup

setup(cffi_modules=["agent/ffi/build_native.py:ffibuilder"])
