"""The Date header of responses."""

from email.utils import formatdate

import pytest

from trio_mcp.transports.http.responses import http_date


@pytest.mark.parametrize("second", [0, 951_782_400, 1_780_000_000, 1_798_761_599, 1_798_761_600, 4_102_444_799.9])
def test_http_date_equals_the_date_formatted_by_the_email_package(second: float):
    assert http_date(second) == formatdate(second, usegmt=True)
