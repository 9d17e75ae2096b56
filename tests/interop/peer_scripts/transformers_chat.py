"""What transformers makes of conversations: ids, and which of them an assistant says."""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import transformers


def rendered(given):
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["tokenizer"])
    found = []
    for one in given["conversations"]:
        made = tokenizer.apply_chat_template(
            one["messages"],
            tools=one.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=given["marked"],
        )
        found.append({"ids": made["input_ids"], "mask": made.get("assistant_masks")})
    return found


print(json.dumps([rendered(one) for one in json.loads(sys.argv[1])]))
