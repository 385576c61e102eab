"""The plans of the other backend tests, for GPUs too."""

from tests.backends.conftest import mlp_plan as mlp_plan
