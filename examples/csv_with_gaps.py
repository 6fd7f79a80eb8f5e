"""A CSV file with texts, gaps and a column that says nothing, made here."""

import csv
import random

import pseudocore as pc

draw = random.Random(0)
with open("customers.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "age", "city", "income", "buys"])
    for number in range(200):
        age, city = draw.randint(18, 80), draw.choice(["Bern", "Kyiv", "Lagos", ""])
        income = "NA" if draw.random() < 0.1 else round(draw.gauss(50, 15), 1)
        buys = "yes" if age + 20 * (city == "Bern") + draw.gauss(0, 5) > 50 else "no"
        rows.writerow([number, age, city, income, buys])

data = pc.dataset("customers.csv", target="buys", drop="id", missing="impute")
print(data)  # what was held out and filled in

run = pc.reduce("vbpc", data, model="linear", per_class=3, num_steps=200)
run.coreset.save("coreset.csv")
print(run.coreset.feature_names, run.coreset.class_names)
print(pc.evaluate(run, seeds=2).table())
