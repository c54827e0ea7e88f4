"""For `penstock coordinator`: the job of the test that started this process."""

from tests.failure_matrix.workload import make_job

job = make_job()
