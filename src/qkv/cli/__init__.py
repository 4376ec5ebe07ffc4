"""The command line: one file for each verb, which reads its arguments and calls the library, nothing else."""
