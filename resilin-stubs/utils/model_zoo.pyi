"""resilin.utils.model_zoo. Written by scripts/type_stubs.py."""

from resilin.hub import load_state_dict_from_url as _load_state_dict_from_url
load_url = _load_state_dict_from_url
from resilin.hub import tqdm as tqdm
