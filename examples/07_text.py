"""Intents, one at a time: parts made of words that a person can read, sentences out of scope, an intent taken out."""

# needs: text

from sklearn.feature_extraction.text import TfidfVectorizer

from torchpfc.sklearn import PFCClassifier

INTENTS = {
    "lost card": """i lost my card; my card is gone, i think it was stolen; someone stole my bank card
        block my card, i lost it; i left my card in a shop, please freeze it; my purse was stolen with the card inside
        report a stolen card; freeze my card now""",
    "balance": """what is my balance; how much money do i have; how much is in my account; what is left in my account
        tell me my account balance; do i have enough money in my account; show me the balance of my savings account
        how much money is left""",
    "transfer": """send fifty euros to my sister; i want to transfer money to a friend; transfer money abroad
        pay the rent to my landlord; send money to another bank; make a transfer to my sister
        transfer fifty to savings; i need to send a payment to my landlord""",
    "opening hours": """when do you open; are you open on sunday; what are your opening hours; how late are you open
        when does the branch close today; is the branch open on saturday; at what time do you close
        opening hours of the branch in the station""",
}
TAUGHT = {intent: text.replace("\n", ";").split(";") for intent, text in INTENTS.items()}
ASKED = ["someone stole my card", "could you send money to my landlord", "is the branch open on sunday"]
STRANGE = ["will it rain tomorrow", "play some music", "who won the football game"]

words = TfidfVectorizer().fit([text for texts in TAUGHT.values() for text in texts])

encode = words.transform
model = PFCClassifier(parts_per_batch=3, random_state=0)
for intent, texts in TAUGHT.items():  # each once, none of them again
    model.partial_fit(encode(texts), [intent] * len(texts), batch_id=intent)

print(model.explain(encode(ASKED), features=words.get_feature_names_out()))
for kind, sentences in (("asked", ASKED), ("strange", STRANGE)):
    scores = ", ".join(f"{p:.3f}" for p in model.recognition_score(encode(sentences)))
    print(f"\nHow usual the {kind} sentences are, at least {model.smallest_p_value_:.3f}: {scores}", end="")

report = model.forget("transfer")
print(f"\n\nAfter forgetting transfers, {report.num_columns} parts: {', '.join(model.predict(encode(ASKED)))}.")
