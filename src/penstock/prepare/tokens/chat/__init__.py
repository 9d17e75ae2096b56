"""Conversations as documents: a tokenizer's own chat template in a sandbox, and which text an assistant generates.

`render` loads templates and renders conversations, `rows` reads them from lines, `mask` finds the generated tokens.
"""
