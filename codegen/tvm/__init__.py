"""The only modules of codegen that touch TVM: loops as TIR, schedules, machine code, linking."""
