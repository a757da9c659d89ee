"""Plans changes before anything is done. Pure: facts in, a `Plan` out.

`facts` holds the planner's input, `make` turns facts and an intent into a plan, `model` is the published plan
(JSON, YAML), `apply` turns a saved plan back into the changes to execute, `render` into rows of tables.
"""
