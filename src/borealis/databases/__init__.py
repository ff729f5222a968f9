"""The databases that SQL boxes talk to: where they are, what their errors mean, and what is known to be written.

Only what runs a SQL box imports the files in here: SQLAlchemy is not needed by anything else.
"""
