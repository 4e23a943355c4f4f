"""The attempts of the sample log, written by hand for this project.

Owns the texts only; `make_problems` lays them out as `replay.jsonl` and works out the
rewards. Some attempts are wrong on purpose, each in a way that people are wrong.
"""

from __future__ import annotations

ENTRIES: tuple[tuple[str, str, tuple[str, str, str, str]], ...] = (
    (
        "A school orders 6 packs of 24 pencils and hands 95 of them out on the first day. "
        "How many pencils stay in the cupboard?",
        "49",
        (
            "The packs hold 6 * 24 = <<6*24=144>>144 pencils\n"
            "After the first day 144 - 95 = <<144-95=49>>49 pencils stay\nA: 49",
            "There are 6 * 24 = <<6*24=144>>144 pencils in the packs\nA: 144",
            "The school has 24 + 6 = <<24+6=30>>30 packs\n"
            "It still needs 95 - 30 = <<95-30=65>>65 pencils\nA: 65",
            "6 packs of 24 pencils are 6 * 24 = <<6*24=144>>144 pencils\n"
            "So 144 - 95 = <<144-95=49>>49 are in the cupboard\nA: 49",
        ),
    ),
    (
        "Farid picks 38 plums. He keeps 6 for a cake and 8 for his sister, and puts the "
        "rest in bags of 4. How many bags does he fill?",
        "6",
        (
            "He keeps 6 + 8 = <<6+8=14>>14 plums\nThat leaves 38 - 14 = <<38-14=24>>24 plums\n"
            "They fill 24 / 4 = <<24/4=6>>6 bags\nA: 6",
            "After the cake he has 38 - 6 = <<38-6=32>>32 plums\n"
            "They fill 32 / 4 = <<32/4=8>>8 bags\nA: 8",
            "He keeps 6 + 8 = <<6+8=14>>14 plums\nThe rest is 38 - 14 = <<38-14=24>>24 plums\n"
            "A: 24",
            "Cake and sister take 6 + 8 = <<6+8=14>>14 plums\n"
            "So 38 - 14 = <<38-14=24>>24 are left\nHe fills 24 / 4 = <<24/4=6>>6 bags\nA: 6",
        ),
    ),
    (
        "A cinema ticket costs 9 dollars and a bag of popcorn 4 dollars. Five friends each "
        "buy both. What do they pay together, in dollars?",
        "65",
        (
            "One friend pays 9 + 4 = <<9+4=13>>13 dollars\n"
            "Five friends pay 13 * 5 = <<13*5=65>>65 dollars\nA: 65",
            "The tickets cost 9 * 5 = <<9*5=45>>45 dollars\n"
            "With popcorn that is 45 + 4 = <<45+4=49>>49 dollars\nA: 49",
            "Each friend spends 9 + 4 = <<9+4=13>>13 dollars\n"
            "Together they spend 13 * 5 = <<13*5=65>>65 dollars\nA: 65",
            "Ticket and popcorn are 9 + 4 = <<9+4=13>>13 dollars\nA: 13",
        ),
    ),
    (
        "A water tank holds 300 litres. A pump fills in 25 litres a minute while a leak loses "
        "5 litres a minute. How many minutes until the empty tank is full?",
        "15",
        (
            "Each minute the tank gains 25 - 5 = <<25-5=20>>20 litres\n"
            "It is full after 300 / 20 = <<300/20=15>>15 minutes\nA: 15",
            "The pump needs 300 / 25 = <<300/25=12>>12 minutes\nA: 12",
            "The pump needs 300 / 25 = <<300/25=12>>12 minutes\n"
            "The leak adds 5 minutes, so 12 + 5 = <<12+5=17>>17 minutes\nA: 17",
            "In a minute 25 - 5 = <<25-5=20>>20 litres stay in\n"
            "So 300 / 20 = <<300/20=15>>15 minutes\nA: 15",
        ),
    ),
    (
        "Greta saves 12 dollars a week for 9 weeks and then buys a lamp for 70 dollars. How "
        "many dollars has she left?",
        "38",
        (
            "She saves 12 * 9 = <<12*9=108>>108 dollars\n"
            "After the lamp she has 108 - 70 = <<108-70=38>>38 dollars\nA: 38",
            "She saves 12 * 9 = <<12*9=98>>98 dollars\n"
            "After the lamp she has 98 - 70 = <<98-70=28>>28 dollars\nA: 28",
            "In nine weeks that is 12 * 9 = <<12*9=108>>108 dollars\n"
            "She keeps 108 - 70 = <<108-70=38>>38 dollars\nA: 38",
            "She has 12 * 9 = <<12*9=108>>108 dollars\n"
            "The lamp leaves 108 - 70 = <<108-70=38>>38 dollars\nA: 38",
        ),
    ),
    (
        "A ribbon of 96 centimetres is cut into 8 equal pieces. Three of the pieces are used. "
        "How many centimetres are used?",
        "36",
        (
            "A piece has 96 / 8 = <<96/8=12>>12 centimetres\n"
            "Three pieces are 12 * 3 = <<12*3=36>>36 centimetres\nA: 36",
            "Each piece is 96 / 8 = <<96/8=12>>12 centimetres long\nA: 12",
            "The pieces are 96 * 8 = <<96*8=768>>768 centimetres\n"
            "A third is 768 / 3 = <<768/3=256>>256 centimetres\nA: 256",
            "One piece measures 96 / 8 = <<96/8=12>>12 centimetres\n"
            "So 12 * 3 = <<12*3=36>>36 centimetres are used\nA: 36",
        ),
    ),
    (
        "In a hall there are 14 rows of 18 chairs. 37 chairs are broken. How many people can "
        "sit down?",
        "215",
        (
            "There are 14 * 18 = <<14*18=252>>252 chairs\n"
            "So 252 - 37 = <<252-37=215>>215 people can sit\nA: 215",
            "The hall has 14 * 18 = <<14*18=252>>252 chairs\n"
            "Without the broken ones 252 - 37 = <<252-37=215>>215\nA: 215",
            "The rows hold 14 * 18 = <<14*18=252>>252 chairs\n"
            "252 - 37 = <<252-37=215>>215 of them can be used\nA: 215",
            "All chairs are 14 * 18 = <<14*18=252>>252\n"
            "That leaves 252 - 37 = <<252-37=215>>215\nA: 215",
        ),
    ),
    (
        "Hugo walks 3 kilometres to work and the same way back, 5 days a week. How many "
        "kilometres does he walk in 4 weeks?",
        "120",
        (
            "A day is 3 * 2 = <<3*2=6>>6 kilometres\nA week is 6 * 5 = <<6*5=30>>30 kilometres\n"
            "Four weeks are 30 * 4 = <<30*4=120>>120 kilometres\nA: 120",
            "A week is 3 * 5 = <<3*5=15>>15 kilometres\n"
            "Four weeks are 15 * 4 = <<15*4=60>>60 kilometres\nA: 60",
            "He walks 3 * 2 = <<3*2=6>>6 kilometres a day\n"
            "In a week 6 * 7 = <<6*7=42>>42 kilometres\n"
            "In four weeks 42 * 4 = <<42*4=168>>168 kilometres\nA: 168",
            "There are 5 * 4 = <<5*4=20>>20 days\nEach has 3 * 2 = <<3*2=6>>6 kilometres\n"
            "Together 20 * 6 = <<20*6=120>>120 kilometres\nA: 120",
        ),
    ),
    (
        "A florist has 84 roses and 36 tulips. She makes bunches of 10 flowers. How many "
        "bunches can she make?",
        "12",
        (
            "She has 84 + 36 = <<84+36=120>>120 flowers\n"
            "That makes 120 / 10 = <<120/10=12>>12 bunches\nA: 12",
            "The roses make 84 / 10 = <<84/10=8>>8 bunches\n"
            "The tulips make 36 / 10 = <<36/10=3>>3 bunches\n"
            "Together 8 + 3 = <<8+3=11>>11 bunches\nA: 11",
            "There are 84 - 36 = <<84-36=48>>48 flowers\n"
            "They make 48 / 10 = <<48/10=4>>4 bunches\nA: 4",
            "All flowers are 84 + 36 = <<84+36=120>>120\n"
            "In tens that is 120 / 10 = <<120/10=12>>12 bunches\nA: 12",
        ),
    ),
    (
        "A recipe for 4 people needs 300 grams of rice. How many grams are needed for 10 people?",
        "750",
        (
            "One person eats 300 / 4 = <<300/4=75>>75 grams\n"
            "Ten people eat 75 * 10 = <<75*10=750>>750 grams\nA: 750",
            "Ten people eat 300 * 10 = <<300*10=3000>>3000 grams\nA: 3000",
            "Six more people need 300 + 6 = <<300+6=306>>306 grams\nA: 306",
            "For each person 300 / 4 = <<300/4=75>>75 grams\n"
            "Ten need 75 * 10 = <<75*10=750>>750 grams\nA: 750",
        ),
    ),
    (
        "Jana is 11 years old. Her aunt is three times as old, and her grandmother is 28 years "
        "older than the aunt. How old is the grandmother?",
        "61",
        (
            "The aunt is 11 * 3 = <<11*3=33>>33 years old\n"
            "The grandmother is 33 + 28 = <<33+28=61>>61 years old\nA: 61",
            "The grandmother is 11 + 28 = <<11+28=39>>39 years old\nA: 39",
            "The aunt is 11 * 3 = <<11*3=33>>33 years old\n"
            "The grandmother is 33 + 28 = <<33+28=61>>61 years old\nA: 61",
            "The aunt is 11 + 3 = <<11+3=14>>14 years old\n"
            "The grandmother is 14 + 28 = <<14+28=42>>42 years old\nA: 42",
        ),
    ),
    (
        "A printer makes 45 pages a minute. A book has 270 pages and 4 copies are wanted. How "
        "many minutes does it take?",
        "24",
        (
            "One copy takes 270 / 45 = <<270/45=6>>6 minutes\nA: 6",
            "One book takes 270 / 45 = <<270/45=6>>6 minutes\nA: 6",
            "A copy takes 270 / 45 = <<270/45=6>>6 minutes and so do all of them\nA: 6",
            "A book needs 270 / 45 = <<270/45=6>>6 minutes and the four go side by side\nA: 6",
        ),
    ),
)
