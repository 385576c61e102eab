"""A file a group of commands; a new file is found by being here."""
