"""Agents to read, run and copy: each has a module `agent`, and one that plays its model offline."""
