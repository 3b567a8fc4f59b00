"""Data files of the package: policies, wheel sets, option tables. Read them with importlib.resources."""
