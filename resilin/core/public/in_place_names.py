"""Which functions have in-place forms beside those in `methods`: the table that `methods` and `names` read."""

from __future__ import annotations

METHODS = """
    absolute acosh arccos arccosh arcsin arcsinh arctan arctan2 arctanh asinh atan2 atanh bitwise_left_shift bitwise_not
    bitwise_right_shift conj_physical copysign cosh deg2rad divide eq fix float_power frac gcd ge greater greater_equal
    gt heaviside hypot lcm ldexp le less less_equal logical_and logical_or logical_xor lt multiply ne negative nextafter
    not_equal rad2deg sgn sinh subtract tan true_divide xlogy
""".split()  # noqa: SIM905 - a list of 50 strings would fill a page

FUNCTIONS = """
    abs_ acos_ acosh_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_ asinh_ atan_ atanh_ ceil_ clamp_
    clamp_max_ clamp_min_ clip_ conj_physical_ cos_ cosh_ deg2rad_ detach_ erf_ erfc_ exp2_ exp_ expm1_ fill_ fix_
    floor_ frac_ gcd_ i0_ index_put_ lcm_ ldexp_ log10_ log1p_ log2_ log_ logit_ nan_to_num_ neg_ negative_ rad2deg_
    reciprocal_ round_ rsqrt_ sigmoid_ sin_ sinc_ sinh_ sqrt_ square_ tan_ tanh_ trunc_ xlogy_ zero_ detach
    is_inference is_same_size get_device as_strided_ resize_as_ addmv_
""".split()  # noqa: SIM905 - as above
