"""The commands of the tool `ddc` that README, CONTRIBUTING and docs show."""

import re

from cli_support import ddc
from test_docs import PAGES, commands


def test_commands_have_the_options_that_are_shown():
    helps: dict[str, str] = {}
    seen = 0
    for page in PAGES:
        for words in commands(page):
            if not words[0].endswith("cli/ddc"):
                continue
            command = words[1]
            if command not in helps:
                shown = ddc(command, "--help")
                assert shown.returncode == 0, words
                helps[command] = shown.stdout
            for word in words[2:]:
                if word.startswith("--"):
                    seen += 1
                    assert re.search(rf"{word.split('=')[0]}\b", helps[command]), words
    assert seen > 5
