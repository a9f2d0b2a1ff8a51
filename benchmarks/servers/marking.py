"""What measured programs tell the driver beside the protocol: see `benchmarks.driver.marks`."""

import os

_FD = int(os.environ["BENCHMARK_MARKS"])


def began(number):
    """Handler ``number`` has begun."""
    os.write(_FD, b"b%d\n" % number)


def ended(number):
    """Handler ``number`` has ended and cleaned up."""
    os.write(_FD, b"e%d\n" % number)


def listening(port):
    """Clients can connect to ``port``."""
    os.write(_FD, b"p%d\n" % port)


def row(number):
    """What is logged."""
    return f"row {number} was read, checked and written"


def question(number):
    """What the client is asked."""
    return f"question {number}"


def answer(number):
    """What the client has to answer."""
    return f"answer {number}"
