"""A logger that says nothing, for programs that want their commander silent."""

import logging


def get_null_logger(name: str | None = None) -> logging.Logger:
    logger = logging.getLogger(name or "tenuto.flow.silent")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
