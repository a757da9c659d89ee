"""What a change would do, before anything is done. Pure: facts in, a `Plan` out.

`facts` is what was observed, `make` turns facts and an intent into a plan, `model` is the plan as others
read it (JSON, YAML), `apply` turns a saved plan back into the changes to execute, `render` into rows.
"""
