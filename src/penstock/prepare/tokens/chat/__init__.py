"""Conversations as documents: a tokenizer's own chat template in a sandbox, and which text an assistant generates.

`template` loads templates, `rows` reads conversations from lines, `render` renders them in a `sandbox`, and `mask`
finds the generated tokens.
"""
