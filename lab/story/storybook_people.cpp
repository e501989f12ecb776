#include "lab/story/storybook_content.h"

namespace mr::story {

const std::string_view kStorybookPeople = R"(
@rule who
6* a {trait=trait} [little|young] girl named {hero=girl}
6* a {trait=trait} [little|young] boy named {hero=boy}
2* a {trait=trait} [little|young] {kind=beast} named {hero=she_beast}
2* a {trait=trait} [little|young] {kind=beast} named {hero=he_beast}

@table trait: word
kind; curious; cheerful; quiet; gentle; clever; merry; friendly; dreamy; lively; thoughtful; patient
shy; bright; sweet; busy; playful; careful; polite; stubborn; hopeful; tidy; giggly; funny
brave-hearted; cozy; daring; freckled; graceful; grumpy; handy; hardy; humble; jolly; loyal; messy
breezy; candid; chatty; dimpled; fearless; forgetful; generous; high-spirited; mellow; neat; peppy
quick; sprightly; trusting; twinkling; warm; witty; zesty
nimble; noisy; nosy; proud; restless; rosy; sensible; serious; silly; sleepy-eyed; sunny; tireless

@table girl: name | they=she | them=her | their=her | self=herself | kid=girl | pets={kid_pets}
3* Lily; 3* Mia; 2* Anna; 2* Rosa; 2* Ella; 2* Nora; 2* Clara; 2* Ruby; 2* Maya; 2* Sophie
Ada; Alma; Amara; Astrid; Beth; Bonnie; Carmen; Cora; Daisy; Edith; Elsa; Emma; Esther; Eva
Fatima; Flora; Freya; Gemma; Grace; Greta; Hana; Hazel; Heidi; Holly; Ida; Ingrid; Ivy; Jane
June; Kaya; Kate; Layla; Leila; Lena; Lola; Lucy; Mabel; Maria; Matilda; Molly; Naomi; Nina
Olive; Paula; Pearl; Penny; Poppy; Priya; Rita; Rosie; Sara; Selma; Tess; Tilda; Uma; Vera
Willa; Wren; Yara; Yuki; Zara; Zoe
Agnes; Aisha; Alice; Amelia; Anika; Beatrice; Bella; Bridget; Camille; Celia; Chloe; Clementine
Dalia; Dora; Eleanor; Elin; Faye; Frida; Gwen; Harriet; Helga; Imogen; Isla; Jasmine; Josie; Juno
Karin; Keiko; Lottie; Luna; Maeve; Marta; Meera; Millie; Nadia; Nell; Odette; Ottilie; Petra; Quilla
Ramona; Rhea; Saskia; Signe; Stella; Sunniva; Talia; Thea; Ursula; Vivian; Wilma; Xenia; Yasmin; Zelda

@table boy: name | they=he | them=him | their=his | self=himself | kid=boy | pets={kid_pets}
3* Tom; 3* Ben; 2* Max; 2* Sam; 2* Leo; 2* Oscar; 2* Theo; 2* Henry; 2* Jack; 2* Noah
Adam; Albert; Amir; Anton; Arlo; Arthur; Axel; Bruno; Carl; Caleb; Daniel; David; Diego; Edgar
Eli; Emil; Ezra; Felix; Finn; Frank; Fred; George; Hugo; Isaac; Ivan; Jacob; Jamal; Jasper
Joel; John; Karl; Kofi; Liam; Luca; Luke; Marco; Mateo; Milo; Nathan; Ned; Nico; Oliver
Omar; Otto; Owen; Paul; Peter; Quinn; Ravi; Robin; Rory; Samir; Simon; Stefan; Tariq; Tim
Toby; Victor; Walter; Will; Yusuf; Zack
Abel; Alfie; Alvin; Andre; Anders; Basil; Bertie; Boris; Casper; Cedric; Clement; Conrad; Darius; Dexter
Edwin; Elias; Enzo; Ernest; Farid; Fergus; Gabriel; Gideon; Gilbert; Gregor; Hamza; Harold; Hector; Idris
Igor; Jonas; Julian; Kenji; Kurt; Lars; Leon; Linus; Magnus; Malik; Miles; Morris; Nils; Olaf
Orlando; Pascal; Pavel; Philip; Rafael; Reuben; Rufus; Silas; Sven; Thomas; Ulrich; Vincent; Wilfred; Xavier

@table beast: kind
rabbit; mouse; fox; bear; hedgehog; squirrel; badger; otter; beaver; raccoon; kitten; duckling
mole; lamb; piglet; frog; panda; koala; dormouse; chipmunk
bunny; calf; cub; fawn; gosling; hamster; kangaroo; lynx; meerkat; newt; penguin; pony; possum; puffin
red panda; seal pup; shrew; skunk; tortoise; weasel; wombat; yak

@table she_beast: name | they=she | them=her | their=her | self=herself | kid={kind}
  | pets={beast_pets}
Tansy; Clover; Bramble; Pippa; Dot; Mimi; Tulip; Honey; Fern; Maple; Plum; Juniper; Lulu; Nutmeg
Peony; Sorrel; Tilly; Violet; Willow; Bluebell
Amber; Apple; Aster; Birdie; Blossom; Buttercup; Cherry; Cinnamon; Dewdrop; Dahlia; Feather; Ginny
Heather; Iris; Jolly; Kiki; Lavender; Marigold; Minty; Olivine; Pansy; Pebble; Primrose; Puff
Raisin; Rosebud; Saffron; Snowdrop; Thistle; Velvet

@table he_beast: name | they=he | them=him | their=his | self=himself | kid={kind}
  | pets={beast_pets}
Pip; Bo; Rusty; Bumble; Moss; Hopper; Nibs; Oakley; Tuck; Barnaby; Chester; Fuzzy; Digby; Gus
Monty; Percy; Sprout; Wally; Waffle; Ziggy
Alder; Banjo; Basker; Bracken; Bristle; Bubbles; Burdock; Buster; Chip; Clovis; Cobbler; Dash; Dobbin
Fidget; Fizz; Grumble; Hickory; Jumper; Kip; Larkin; Mumble; Nutkin; Otis; Paddy; Quill; Ripple
Rowan; Scamper; Scruff; Snuffle; Tumble; Twitch; Wimble; Yarrow

@rule kid_pets
3* {^hero.they} had {a pet=pet} named {petname=petname}.
3* {^hero.their} best friend was {a pet=pet} named {petname=petname}.
6* {pet=no_pet}

@rule beast_pets
3* {^hero.their} best friend was {a pet=tiny_pet} named {petname=petname}.
4* {pet=no_pet}

@table petname: name
Biscuit; Button; Pepper; Muffin; Ginger; Patch; Cocoa; Peanut; Snowball; Pudding; Whiskers; Marble
Acorn; Bean; Crumb; Dumpling; Flick; Jam; Mango; Noodle; Pickle; Pumpkin; Scout; Spot; Toast; Twig
Bingo; Bobbin; Breezy; Caramel; Chestnut; Clementina; Cricket; Custard; Domino; Fig; Freckles; Fudge
Gadget; Hazelnut; Inky; Jellybean; Kettle; Lemon; Licorice; Macaroni; Midge; Mocha; Moonbeam; Mustard
Nugget; Olly; Pancake; Peaches; Pogo; Popcorn; Porridge; Radish; Rascal; Scamp; Skipper; Smudge
Bagel; Biddy; Bonbon; Bramley; Cashew; Chutney; Doodle; Dusty; Fiddle; Flapjack; Gravy; Huckle
Jigsaw; Kumquat; Lollipop; Muddle; Nectar; Oatmeal; Pretzel; Quibble; Rumpus; Sesame; Tinker; Waddle
Socks; Sparky; Sprinkle; Squeak; Sugar; Taffy; Thimble; Truffle; Turnip; Velcro; Wiggles; Zigzag

# A hero without a pet. Its sad and joy are never reached, but must be words: the proof of
# unambiguity does not know that.
@table no_pet: kind | sad | joy | grief={sorrow} | may_joy=- | glad={glad}
- | Nobody saw. | Nobody saw.

@rule pet_grief
{pet.sad}
{sorrow}

@rule pet_joy
{pet.joy}
-

@rule pet_glad
{pet.joy}
{glad}

@table pet: kind | sad | joy | grief={pet_grief} | may_joy={pet_joy} | glad={pet_glad}
3* puppy | [{petname} licked {hero.their} hand.|{petname} laid a soft paw on {hero.their} knee.] |
  [{petname} barked and ran in circles.|{petname} wagged and wagged.]
3* kitten | [{petname} rubbed against {hero.their} leg.|{petname} curled up on {hero.their} lap.] |
  [{petname} purred like a tiny engine.|{petname} chased a leaf for joy.]
parrot | {petname} whispered, "Poor {hero}, poor {hero}." |
  [{petname} squawked, "Hooray! Hooray!"|{petname} flapped in a happy circle.]
pony | {petname} nudged {hero.them} with a warm nose. |
  [{petname} tossed a shaggy mane and neighed.|{petname} trotted around and around.]
goat | {petname} gave {hero.them} half a thistle to cheer {hero.them} up. |
  [{petname} bleated and jumped over a bucket.|{petname} kicked up both heels.]
white hen | {petname} tucked herself under {hero.their} arm. |
  [{petname} clucked and flapped.|{petname} laid an egg on the spot.]
rabbit with long ears | {petname} sat very close to {hero.them}. |
  [{petname} hopped high in the air.|{petname} thumped one happy foot.]
duck | {petname} gave a sad little quack. | {petname} quacked the loudest quack of all.
turtle | {petname} looked up with kind, slow eyes. |
  [{petname} did a very slow dance.|{petname} smiled a slow smile.]
spotted pig | {petname} leaned against {hero.their} knee. |
  [{petname} squealed and rolled over.|{petname} twirled a curly tail.]
gray donkey | {petname} laid a heavy head on {hero.their} shoulder. |
  [{petname} brayed for the whole world to hear.|{petname} flapped two long ears.]
woolly sheep | {petname} let {hero.them} hide in the wool. |
  [{petname} bleated and skipped.|{petname} bounced like a cloud.]
striped cat | {petname} sat down on {hero.their} feet. |
  [{petname} pounced on a sunbeam.|{petname} purred with half-closed eyes.]
shaggy dog | {petname} howled along softly. |
  [{petname} leaped into the air.|{petname} ran after a tail that would not be caught.]
goldfish | {petname} blew a small, round bubble. | {petname} swam three quick circles.
canary | {petname} tilted a yellow head and was silent. |
  [{petname} trilled and trilled.|{petname} hopped from perch to perch.]

@table tiny_pet: kind | sad | joy | grief={pet_grief} | may_joy={pet_joy} | glad={pet_glad}
ladybug | {petname} sat quietly on {hero.their} nose. | {petname} flew a happy loop.
snail | {petname} hid in the shell and sighed. | {petname} wiggled both horns with joy.
cricket | {petname} played a slow, sad song. | {petname} chirped the merriest tune.
firefly | {petname} glowed softly to comfort {hero.them}. | {petname} twinkled on and off.
sparrow | {petname} chirped a tiny, worried chirp. | {petname} sang from the tallest twig.
caterpillar | {petname} curled into a worried ball. | {petname} clapped with all those feet.
moth | {petname} folded both wings and waited. | {petname} danced around the light.
bumblebee | {petname} hummed a low, sad hum. | {petname} buzzed in and out of a flower.
beetle | {petname} tapped one leg in worry. | {petname} turned a shiny somersault.
grasshopper | {petname} did not hop at all. | {petname} jumped over everything in sight.
tadpole | {petname} hid under a leaf. | {petname} wriggled for joy.
wren | {petname} fluffed up and said nothing. | {petname} sang louder than a trumpet.
)";

}  // namespace mr::story
