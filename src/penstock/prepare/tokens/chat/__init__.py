"""Conversations as documents: a tokenizer's own chat template, in a sandbox, and which text an assistant generates.

`template.py` what is found beside a tokenizer · `sandbox.py` the jinja2 environment · `render.py` a conversation → its
text and the parts that are generated · `reader.py` lines of JSON → texts · `rows.py` rows → conversations ·
`normalize.py` messages as templates get them · `mask.py` characters → tokens.
"""
