"""Marks of tests that need something."""

import pytest

from tapmachine.torch_versions import has_tested_compiler

needs_compiler = pytest.mark.skipif(not has_tested_compiler(), reason="compiles, which needs torch 2.11")
