"""Tensors with hidden batch dimensions, which `vmap` is made of: `levels` says what they are, `dispatch` how an op
treats them, the `rules_*` which ops do so without a loop."""
