"""resilin.autograd.anomaly_mode. Written by scripts/type_stubs.py."""

from resilin.autograd import detect_anomaly as detect_anomaly
from resilin.autograd import set_detect_anomaly as set_detect_anomaly
