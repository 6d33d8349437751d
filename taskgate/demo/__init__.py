"""The demo: starts a whole service, works it over HTTP alone, and checks that it kept its promises."""
