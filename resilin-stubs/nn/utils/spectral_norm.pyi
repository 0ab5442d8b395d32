"""resilin.nn.utils.spectral_norm. Written by scripts/type_stubs.py."""

from resilin.nn.utils.norm_hooks import _SpectralNormHook as __SpectralNormHook
SpectralNorm = __SpectralNormHook
from resilin.nn.utils import remove_spectral_norm as remove_spectral_norm
from resilin.nn.utils import spectral_norm as spectral_norm
