"""`labkit bench`: every figure of the kit from one command.

The figures are measured by the lessons' own cells: for each name the bench runs the cell that
measures it and those before it that this cell needs, in a process without a notebook, at a GPU's
full sizes, and keeps what `lab.bench` measured. A lesson and the bench therefore cannot differ in
kernel, shapes, baselines or checks, and a new lesson is in the bench as soon as it calls
`lab.bench`. `cases` says at which further sizes a lesson is measured.

* `slicing`: which cells of a lesson a cell needs; `places`: which cells measure a name
* `cases`: what is measured, with which of the lessons' parameters
* `worker`: a process that runs cases; `workers`: the processes, watched from outside
* `session`: prepares, measures, keeps; `report`: the file; `costs`: what learning costs in seconds
* `compare`: two files side by side; `readme`: the table and the plot of README
"""
