"""`whichtoken serve` as a process."""

import re
import signal
import subprocess
import sys


class Served:
    """`whichtoken serve` as a process of its own, which may be killed and started again on the same folder."""

    def __init__(self, out):
        self.out, self.process, self.address = out, None, ""

    def start(self, *options):
        command = [sys.executable, "-m", "whichtoken", "serve", "--out", str(self.out), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        self.address = re.search(r"http://\S+?(?=/(\?|$|\s))", line)[0]
        self.link = re.search(r"http://\S+", line)[0]
        return self

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(30)
