"""The authorization server of the demo and of the tests: oidc-provider in a process of Node, installed by npm.

`provider` gets the packages, starts the server, and presses the button of its sign-in page.
"""
