"""resilin.utils.data.dataloader. Written by scripts/type_stubs.py."""

from resilin.data import DataLoader as DataLoader
from resilin.data import default_collate as default_collate
from resilin.data import default_convert as default_convert
from resilin.data import get_worker_info as get_worker_info
