"""A terminal of the simplest kind: what a program that was run in it has left on the screen."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

_SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """Cells in rows without end; `wrapped` counts the lines that were too long."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column, self.wrapped = columns, [""], 0, 0, 0

    def feed(self, text):
        for count, code, letter in _SEQUENCE.findall(text):
            line = self.rows[self.row]
            if code == "A":
                self.row = max(0, self.row - int(count or 1))
            elif code == "K":
                self.rows[self.row] = line[: self.column]
            elif code == "J":
                self.rows[self.row :] = [line[: self.column]]
            elif code:
                raise AssertionError(f"unknown sequence {code!r}")
            elif letter == "\r":
                self.column = 0
            elif letter == "\n":
                self._down()
            else:
                self._put(letter)

    def _down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def _put(self, letter):
        if self.column == self.columns:
            self.wrapped += 1
            self.column = 0
            self._down()
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    def text(self):
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")


def run_in_terminal(command, columns, watch=lambda process, screen: None, **options):
    """Runs it with a terminal as its standard error. `watch` is called whenever something was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, encoding="utf-8", **options
    )
    os.close(theirs)
    screen = Screen(columns)
    frames = b""
    while True:
        try:
            frames += os.read(ours, 4096)
        except OSError:  # how the end looks on Linux
            break
        text = frames.decode("utf-8", errors="ignore")
        # A sequence may be cut in two: it is shown with the rest of it.
        end = max(text.rfind("\x1b"), 0) if text.endswith(("\x1b", "\x1b[")) else len(text)
        screen.feed(text[:end])
        frames = text[end:].encode()
        watch(process, screen)
    os.close(ours)
    stdout = process.stdout.read()
    return process.wait(), stdout, screen
