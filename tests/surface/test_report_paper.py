def test_the_reader_of_latex_leaves_the_loggers_of_others_alone() -> None:
    """Else what torch logs would be on stderr in every test that follows in the process."""
    assert logging.Logger is logging.getLoggerClass()
    assert [] == logging.getLogger("made after plasTeX").handlers
