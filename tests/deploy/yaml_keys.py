"""The keys of a flat YAML file, also of lines that are commented out: what an operator may write, without a YAML library."""
import re


def of(text):
    return set(re.findall(r"^(?:# )?([a-z][a-z-]+):(?: |$)", text, re.M))
