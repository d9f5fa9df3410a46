"""SciPy's assignment solver, without the rest of `scipy.optimize`.

The solver is one small C extension. Its package imports the linear algebra, the sparse matrices and every other
optimiser with it: 39 MiB and some tenths of a second that an agent on a capture host never uses.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

_Solver = Callable[[npt.NDArray[np.float64]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def _load() -> _Solver:
    spec = PathFinder.find_spec("_lsap", [str(Path(scipy.__file__).parent / "optimize")])
    if spec is not None and spec.loader is not None:
        module: Any = module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, "linear_sum_assignment"):
            solver: _Solver = module.linear_sum_assignment
            return solver
    # Another release of SciPy may keep it elsewhere; this is where it is public.
    from scipy.optimize import linear_sum_assignment

    public: _Solver = linear_sum_assignment
    return public


linear_sum_assignment = _load()
"""`scipy.optimize.linear_sum_assignment(cost)` for a cost matrix to be minimised."""
