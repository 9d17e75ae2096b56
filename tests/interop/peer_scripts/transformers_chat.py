"""What transformers makes of conversations: ids, and which an assistant says; null for those that it refuses."""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import transformers


def rendered(case):
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["tokenizer"])
    return [one_rendered(tokenizer, row, case["marked"]) for row in case["conversations"]]


def one_rendered(tokenizer, row, marked):
    try:
        made = tokenizer.apply_chat_template(
            row["messages"],
            tools=row.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=marked,
        )
    except Exception:  # of the template, of any kind
        return None
    return {"ids": made["input_ids"], "mask": made.get("assistant_masks")}


print(json.dumps([rendered(one) for one in json.loads(sys.argv[1])]))
