"""Networks for sequences: the factorized RNN, with backpropagation and without it, and what it is compared with."""

from torchpfc.nn.recurrent.inference import AllSlices, SliceBySlice
from torchpfc.nn.recurrent.nmf_rnn import NMFRNN
from torchpfc.nn.recurrent.rnn import FactorizedRNN, FactorizedRNNCell, RecurrentCoupling, rnn_reconstruction_loss
from torchpfc.nn.recurrent.vanilla import VanillaRNN

__all__ = [
    "NMFRNN",
    "AllSlices",
    "FactorizedRNN",
    "FactorizedRNNCell",
    "RecurrentCoupling",
    "SliceBySlice",
    "VanillaRNN",
    "rnn_reconstruction_loss",
]
