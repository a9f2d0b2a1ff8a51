"""The authorization server of the demo and of the tests: oidc-provider in a process of Node, installed by npm.

`installing` gets the packages, `running` starts the server, and `pressing` presses the button of its sign-in page.
"""
