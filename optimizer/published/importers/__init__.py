"""Importers: a published graph format -> our graph and, where the format has one, our cluster.

thesis      node-link JSON of the thesis' authors: a time per device, tensors in bits
msr         accelerators and CPUs of one machine, joined by host memory
moirai      four unlike devices, and what each transfer takes between every two of them
node_link   networkx's node-link JSON with our attributes, read and written
onnx        the operators of an ONNX model (onnx_model: sizes; onnx_costs: FLOPs and traffic)
chakra      execution traces (chakra_messages: protobuf; traced, traced_flow, traced_costs: calls
            that name their tensors, and what flows between the calls)
formats     the formats as they are registered, by name
"""
