"""What a call costs, on paper: launches, bytes, operations and waits of its launch plan.

The plan runs on tensors without memory and is priced for a machine by published figures. No GPU
is needed, and no figure here was measured on an Apple GPU.
"""

from mpslinalg._cost.factors import Factor as Factor
from mpslinalg._cost.factors import factor as factor
from mpslinalg._cost.machines import H200 as H200
from mpslinalg._cost.machines import MACHINES as MACHINES
from mpslinalg._cost.machines import Machine as Machine
from mpslinalg._cost.model import Price as Price
from mpslinalg._cost.model import price as price
from mpslinalg._cost.plan import NoPlan as NoPlan
from mpslinalg._cost.plan import Plan as Plan
from mpslinalg._cost.plan import Step as Step
from mpslinalg._cost.plan import plan as plan
from mpslinalg._cost.prediction import Prediction as Prediction
from mpslinalg._cost.prediction import predict as predict
