"""resilin._utils. Written by scripts/type_stubs.py."""

from resilin.utils.dense_tensors import ExceptionWrapper as ExceptionWrapper
from resilin.utils.dense_tensors import _element_size as _element_size
from resilin.utils.dense_tensors import _flatten_dense_tensors as _flatten_dense_tensors
from resilin.utils.dense_tensors import _get_all_device_indices as _get_all_device_indices
from resilin.utils.dense_tensors import _get_available_device_type as _get_available_device_type
from resilin.utils.dense_tensors import _get_device_index as _get_device_index
from resilin.utils.dense_tensors import _rebuild_parameter as _rebuild_parameter
from resilin.utils.dense_tensors import _rebuild_parameter_with_state as _rebuild_parameter_with_state
from resilin.utils.dense_tensors import _rebuild_tensor as _rebuild_tensor
from resilin.utils.dense_tensors import _rebuild_tensor_v2 as _rebuild_tensor_v2
from resilin.utils.dense_tensors import _rebuild_tensor_v3 as _rebuild_tensor_v3
from resilin.utils.dense_tensors import _reorder_tensors_as as _reorder_tensors_as
from resilin.utils.dense_tensors import _take_tensors as _take_tensors
from resilin.utils.dense_tensors import _unflatten_dense_tensors as _unflatten_dense_tensors
