"""What a product of finite numbers may warn of, with the settings of these tests.

``sgemv_t`` of OpenBLAS 0.3.31 for AVX-512 sums lanes that it never wrote (inner width 5, float32), and throws
the sum away. What lies there is now and then a signalling NaN, by where the process was loaded: the flag that
it raises is all that is wrong.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest


@pytest.mark.parametrize("product", ["matmul", "dot", "matvec", "vecmat"])
def test_an_invalid_value_in_a_product_is_no_error(product: str) -> None:
    warnings.warn(f"invalid value encountered in {product}", RuntimeWarning, stacklevel=1)


@pytest.mark.parametrize("operation", ["divide", "subtract", "log", "multiply"])
def test_one_in_any_other_operation_is(operation: str) -> None:
    with pytest.raises(RuntimeWarning):
        warnings.warn(f"invalid value encountered in {operation}", RuntimeWarning, stacklevel=1)


def test_finite_numbers_whose_product_is_none_are_still_noticed() -> None:
    large = np.array([[3e38, 3e38], [3e38, -3e38]], dtype=np.float32)
    with pytest.raises(RuntimeWarning, match="overflow encountered in matmul"):
        large @ large
    with pytest.raises(RuntimeWarning, match="overflow encountered in dot"):
        large[0].dot(large[0])
