from mechmarkov.runs.loading import example as example
from mechmarkov.runs.loading import load as load
from mechmarkov.runs.run import Run as Run
from mechmarkov.safe.plain_data import RunFileError as RunFileError
