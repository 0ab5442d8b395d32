"""resilin.signal.windows.windows. Written by scripts/type_stubs.py."""

from resilin.signal.windows import bartlett as bartlett
from resilin.signal.windows import blackman as blackman
from resilin.signal.windows import cosine as cosine
from resilin.signal.windows import exponential as exponential
from resilin.signal.windows import gaussian as gaussian
from resilin.signal.windows import general_cosine as general_cosine
from resilin.signal.windows import general_hamming as general_hamming
from resilin.signal.windows import hamming as hamming
from resilin.signal.windows import hann as hann
from resilin.signal.windows import kaiser as kaiser
from resilin.signal.windows import nuttall as nuttall
