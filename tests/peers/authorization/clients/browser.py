"""A user with a browser: opens the sign-in page, presses the button, and says where the browser is sent in the end."""

from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, ProxyHandler, build_opener

__all__ = ["sign_in"]


def sign_in(url: str, redirect_uri: str) -> str:
    """The URL of the callback."""

    class StopsThere(HTTPRedirectHandler):
        def redirect_request(self, request, fp, code, msg, headers, newurl):
            if newurl.startswith(redirect_uri):
                return None  # which makes the redirect an error, with its headers
            return super().redirect_request(request, fp, code, msg, headers, newurl)

    browser = build_opener(ProxyHandler({}), HTTPCookieProcessor(), StopsThere())
    try:
        with browser.open(url) as page:
            form = page.url
        with browser.open(form, urlencode({"answer": "allow"}).encode()):
            raise AssertionError("the user was sent nowhere")
    except HTTPError as error:
        with error:
            return error.headers["Location"]
